# right: what an earlier crash may have left is removed; the bytes are read back
temporary = "." + name
if temporary in disk.names:
    disk.remove(temporary)
disk.write(temporary, data)
if disk.read(temporary) != data:
    raise OSError("not what was written")
disk.fsync(temporary)
disk.rename(temporary, name)
disk.sync_folder()
return name
