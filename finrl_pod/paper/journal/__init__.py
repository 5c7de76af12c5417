"""The journal: everything the daemon intends, sends, learns and decides, in one SQLite file that is only added to."""
