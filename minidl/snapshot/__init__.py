"""Snapshots: save a run, and go on from it to the same bits, on any number of ranks.

    snapshot  save and load: start here
    behind    save that does not wait for the disk
    folder    which files a folder of snapshots holds, and what their names say
    lock      one writer at a time
    durable   writing so that a crash at any moment leaves the old or the new
    regions   which elements of which tensor a rank holds
    divided   a model whose tensors are in parts on several ranks
    rows      what each rank has a part of: a stream's places, a table's embeddings
    residuals what gradient compression still owes
    fit       does a snapshot fit the model?
    hugging_face  GPT-2 and Llama from their files
    header        Reads the header of a safetensors file, and refuses what the format does not allow
    one_file      save and load: tensors in dicts and lists, as one safetensors file

    minidl.snapshot.save("runs", step, model=model, optimizer=optimizer)
    step = minidl.snapshot.load("runs", model=model, optimizer=optimizer)
"""

from minidl.snapshot.behind import Behind
from minidl.snapshot.folder import at_step, latest, steps
from minidl.snapshot.hugging_face import from_hugging_face
from minidl.snapshot.snapshot import SnapshotError, load, save
