"""`clusterctl dashboard`: show runs in a browser, on the loopback interface, protected by a token.

`data` reads the runs once for all open pages, `pages` renders them, `application` checks and answers requests, and
`serve` listens.
"""
