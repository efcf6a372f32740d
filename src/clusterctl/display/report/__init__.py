"""`clusterctl report`: one HTML file that needs no font, no network, and no script but the one that sorts tables.

`markup` escapes, `document` is the file around a page and its policy. About one run: `charts` draws SVG, `sections` and
`origins` say what stands where, `page` examines a run and puts it together. About several: `several` is the page,
`parallel` and `heat_map` draw what their settings did.
"""
