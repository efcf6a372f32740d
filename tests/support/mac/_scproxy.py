def _get_proxies():
    return {}


def _get_proxy_settings():
    return {}
