"""`clusterctl report`: a self-contained HTML file without fonts, network access or scripts, except for table sorting.

`markup` escapes text, and `document` adds the head and content security policy. For one run, `page` examines it and
assembles the report from its own sections and those of `sections`, with SVG from `charts`. For several runs, `several`
is the page, with charts of the effect of the settings.
"""
