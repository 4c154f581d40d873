"""The command `minidl`: main.py lists its commands and their files."""
