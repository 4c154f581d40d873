"""What tests of the graders share: a mistake put into a tutorial, a student without a process."""

import textwrap

from minidl.course import student
from minidl.course.exercise import body, fill, regions


def mistaken(text, name, change):
    """`text`, a tutorial's, with a mistake in the region `name`: its code, or {right: wrong}."""
    if isinstance(change, dict):
        found = [region for region in regions(text) if region.id == name]
        code = textwrap.dedent("".join(body(text, region) for region in found))
        for right, wrong in change.items() if found else ():
            if code.count(right) != 1:
                raise ValueError(f"{name}: {right!r} is {code.count(right)} times in the solution")
            code = code.replace(right, wrong)
        change = code
    return fill(text, {name: change})


class Here:
    """student.Apart without a process: the student's module lies in this one."""

    def __init__(self, graders, module, path):
        self.parts = graders, module, path

    def run(self, work, *args):
        given = student.unpack(student.pack(args))
        return student._result(student.answer(*self.parts, work.__name__, given))
