"""The dashboard: a web server of its own that reads run folders and writes nothing."""
