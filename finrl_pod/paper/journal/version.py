"""The version of the journal's tables: as many as there are migrations."""

VERSION = 4
