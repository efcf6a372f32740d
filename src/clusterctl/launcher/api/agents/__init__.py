"""What coding agents get over MCP: tools that read runs, plans to change something, and the server that offers them."""
