"""Runs a kernel in the check form: every access to memory is checked.

    checker    runs a kernel in this form
    hooks      compiles a kernel for the check form, and loads the library that checks accesses
    sentences  makes the text of a finding
    kinds      the name and the remedy of each kind of finding
    report     holds findings and traffic, and prints them
    lines      finds the line of the .cu file for an address in compiled code
    places     finds the array on a line, and the loops around the line
    profile    counts, for each line, the memory requests that a GPU makes
    occupancy  computes how many blocks fit on an SM
"""
