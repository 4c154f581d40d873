"""What the tutorials share: launching, tables, pictures, exercises and their graders.

    tutorial  a script on n ranks: options, launch, progress
    table     the table at the end, measured beside theory
    out       pictures and traces in out/
    exercise  exercises: blank, fill, compare
    grade     graders: run a student's file, say what is wrong
    report    points, as JSON, JUnit XML, for Gradescope; a class's table
    notebook  a script as a Jupyter notebook
    student   the student's code in a process of its own
    handout   a course for students, without solutions
    language  what is shown, in the reader's language; comments: those of a script
    training  the options of a script that trains by any technique
    disk      one that may lose power, for the tutorial about snapshots
    renamed   names that have changed, in a student's files
    guard     Two processes between the grader and the student's code, so that the code cannot end
              the grader
    book      The pages of minidl/plain for documents: what each says, and the real files that stand
              beside it
"""
