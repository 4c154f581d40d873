# right: another temporary name, and a second sync of the folder
disk.write("part", data)
disk.fsync("part")
disk.sync_folder()
disk.rename("part", name)
disk.sync_folder()
