"""Systems whose tools become tools of this host: their configuration, their catalogues, and the connections to them."""
