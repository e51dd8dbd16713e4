"""Django's SQLite backend for the databases of cells: it opens files and never creates one."""
