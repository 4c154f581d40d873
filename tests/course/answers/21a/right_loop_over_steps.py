# right: the calls as a list
new = f"{name}.new"
for call, *words in [(disk.write, new, bytes(data)), (disk.fsync, new), (disk.rename, new, name)]:
    call(*words)
disk.sync_folder()
