# wrong: the file is written as it is, and made safe
disk.write(name, data)
disk.fsync(name)
disk.sync_folder()
