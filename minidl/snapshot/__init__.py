"""Snapshots: save a run, and resume it with the same bits, on any number of ranks.

    snapshot  save and load: start here
    behind    saves without waiting for the disk
    folder    the files in a folder of snapshots, and their names
    lock      allows only one writer at a time
    durable   writes a file: after a crash the old or the new file is complete
    regions   the elements of each tensor that a rank holds
    divided   a model whose tensors are in parts on several ranks
    rows      arrays whose rows are divided among the ranks, such as the embeddings of a table
    residuals the residuals of gradient compression
    fit       checks that a snapshot fits the model
    hugging_face  GPT-2 and Llama from their files
    header        reads and checks the header of a safetensors file
    one_file      save and load: tensors in dicts and lists, as one safetensors file

    minidl.snapshot.save("runs", step, model=model, optimizer=optimizer)
    step = minidl.snapshot.load("runs", model=model, optimizer=optimizer)
"""

from minidl.snapshot.behind import Behind
from minidl.snapshot.folder import at_step, latest, steps
from minidl.snapshot.hugging_face import from_hugging_face
from minidl.snapshot.snapshot import SnapshotError, load, save
