# wrong: a rename is atomic, so nothing else should be needed
disk.write(name + ".tmp", data)
disk.rename(name + ".tmp", name)
disk.sync_folder()
