"""The check form of a kernel: every access to memory is checked.

    checker    runs a kernel in this form
    hooks      its compiled side
    sentences  the text of what is found
    report     findings and traffic, and how they are printed
"""
