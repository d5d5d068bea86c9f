"""Systems whose tools become tools of this host: their configuration, their listings, and the connections to them."""
