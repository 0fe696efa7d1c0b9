"""Jobs: requests with many images, which are stored, processed at low priority and read later."""
