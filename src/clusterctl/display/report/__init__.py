"""`clusterctl report`: one HTML file that needs nothing else - no script, no font, no network.

`markup` escapes, `charts` draws SVG, `sections` says what stands where, `page` examines a run and puts it together.
"""
