"""The check form of a kernel: every access to memory is checked.

    checker    runs a kernel in this form
    hooks      its compiled side
    sentences  the text of what is found
    kinds      the name and the remedy of each thing that can be found
    report     findings and traffic, and how they are printed
    lines      from places in compiled code to lines of the file; places: what is on a line
    profile    what a GPU would make of it, by line; occupancy: blocks on an SM
"""
