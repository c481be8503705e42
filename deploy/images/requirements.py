"""Prints what extras of the distribution in this folder need, line by line: `python requirements.py actor,atari`.

So an image installs what hardly ever changes before the code that often does, and a build after a change takes seconds.
"""

import re
import sys
import tomllib


def requirements(project: dict, extras: list[str]) -> list[str]:
    """Of the distribution itself, and of these extras; an extra that names others is followed."""
    found = list(project["dependencies"])
    while extras:
        extra = extras.pop()
        if extra not in project["optional-dependencies"]:
            sys.exit(
                f"{extra!r} is no extra of {project['name']}; expected {', '.join(project['optional-dependencies'])}"
            )
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[(.+)\]", requirement)
            if own:
                extras.extend(own[1].split(","))
            else:
                found.append(requirement)
    return sorted(set(found))


if __name__ == "__main__":
    with open("pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    print("\n".join(requirements(project, [extra for extra in sys.argv[1].split(",") if extra])))  # noqa: T201
