"""The audit: does anything that is decided know what could not have been known?"""
