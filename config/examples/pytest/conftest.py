pytest_plugins = ["devhost.testing.fixtures"]
