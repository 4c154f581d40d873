# wrong: the name is not on the disk when save returns
temporary = name + ".tmp"
disk.write(temporary, data)
disk.fsync(temporary)
disk.rename(temporary, name)
