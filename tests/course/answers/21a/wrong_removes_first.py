# wrong: makes room for the new name
temporary = name + ".tmp"
disk.write(temporary, data)
disk.fsync(temporary)
if name in disk.names:
    disk.remove(name)
disk.rename(temporary, name)
disk.sync_folder()
