# wrong: keeps the old bytes beside, then writes the file itself
if name in disk.names:
    disk.write(name + ".old", disk.read(name))
    disk.fsync(name + ".old")
disk.write(name, data)
disk.fsync(name)
disk.sync_folder()
