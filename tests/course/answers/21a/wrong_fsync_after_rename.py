# wrong: the bytes are made safe under their last name
disk.write(name + ".tmp", data)
disk.rename(name + ".tmp", name)
disk.fsync(name)
disk.sync_folder()
