"""`clusterctl dashboard`: the runs in a browser, on this machine's loopback, for whoever has the token.

`glances` looks at runs, once for all open pages, `pages` draws what was seen, `application` decides which requests are
answered, and with what, `serve` listens.
"""
