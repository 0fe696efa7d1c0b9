"""Adding and removing models while the service runs, for keys of scope `admin`."""
