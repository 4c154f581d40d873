"""What the tutorials share: launching, tables, pictures, exercises and their graders.

    tutorial  runs a script on n ranks: options, launch, progress
    table     the table at the end: measured values and theory
    out       pictures and traces in out/
    exercise  exercises: blank, fill in, compare
    grade     graders: run a student's file, say what is wrong
    report    writes points as JSON, as JUnit XML or for Gradescope; grades a class
    notebook  writes a script as a Jupyter notebook
    student   runs the student's code in a separate process
    handout   writes a course for students, without solutions
    language  shows texts in the reader's language
    comments  shows the comments of a script in the reader's language
    training  the options of train_gpt.py, which select techniques
    disk      a simulated disk that may lose power, for the tutorial about snapshots
    renamed   brings old names in a student's files up to date
    guard     two processes between the grader and the student's code
    book      reads the pages of minidl/plain, for documents
"""
