"""What the tutorials share: launching, tables, pictures, exercises and their graders.

    tutorial  a script on n ranks: options, launch, progress
    table     the table at the end, measured beside theory
    out       pictures and traces in out/
    exercise  exercises: blank, fill, compare
    grade     graders: run a student's file, say what is wrong
    report    points, as JSON, JUnit XML, for Gradescope; a class's table
    notebook  a script as a Jupyter notebook
    handout   a course for students, without solutions
"""
