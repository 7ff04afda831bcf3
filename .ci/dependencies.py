#!/usr/bin/env python3
"""Checks dependencies against deny.toml: licences, several versions of one crate, banned crates, sources.

cargo-deny reads the same file and checks more, but takes minutes to build and needs the network. Only this script checks
that every dependency of a manifest is used.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_cargo(*arguments):
    """Runs cargo and returns what it prints."""
    command = ["cargo", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def built_packages(target):
    """The packages that are built for a target, for development and tests too: name, version, source, licence."""
    form = "--format={p}\t{l}"
    found = run_cargo("tree", "--workspace", "--locked", "--prefix=none", f"--target={target}", form)
    packages = {}
    for line in filter(None, found.splitlines()):
        package, licence = line.removesuffix(" (*)").split("\t")
        name, version, *source = package.removesuffix(" (proc-macro)").split(" ", 2)
        packages[name, version] = {
            "name": name,
            "version": version.removeprefix("v"),
            # cargo prints a source only for packages that do not come from crates.io.
            "source": source[0].strip("()") if source else None,
            "licence": licence,
        }
    return [packages[key] for key in sorted(packages)]


def is_allowed(expression, allowed):
    """Whether an SPDX expression can be satisfied with the allowed licences. `WITH` an exception only permits more.

    >>> [is_allowed(text, ["A", "B"]) for text in ("A", "A/C", "C OR A", "A AND B", "(C OR A) AND B", "A WITH X AND B")]
    [True, True, True, True, True, True]
    >>> [is_allowed(text, ["A", "B"]) for text in ("", "C", "C AND A", "A AND (C OR D)", "A AND B AND C", "C WITH A")]
    [False, False, False, False, False, False]
    """
    if not expression:
        return False
    tokens = re.findall(r"[()]|[\w.+-]+", expression.replace("/", " OR "))

    def alternatives():
        found = conjunction()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            found = conjunction() or found
        return found

    def conjunction():
        found = licence()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            found = licence() and found
        return found

    def licence():
        token = tokens.pop(0)
        if token == "(":
            found = alternatives()
            tokens.pop(0)
            return found
        if tokens and tokens[0] == "WITH":
            del tokens[:2]
        return token in allowed

    return alternatives()


def matches(package, rule):
    """Whether a rule of deny.toml (`NAME` or `NAME@VERSION`, where the version may be shortened) applies to a package."""
    name, _, version = rule["crate"].partition("@")
    return package["name"] == name and f"{package['version']}.".startswith(f"{version}." if version else "")


def check_policy(packages, policy):
    """Yields violations of the rules for licences, sources, banned crates and duplicates."""
    for package in packages:
        shown = f"{package['name']} {package['version']}"
        if not is_allowed(package["licence"], policy["licenses"]["allow"]):
            yield f"{shown}: the licence `{package['licence']}` is not among those that deny.toml allows"
        if package["source"] and not Path(package["source"]).is_relative_to(ROOT):
            yield f"{shown}: comes from {package['source']}, not from crates.io"
        for rule in policy["bans"]["deny"]:
            if matches(package, rule):
                yield f"{shown}: banned: {rule['reason']}"
    skip = policy["bans"]["skip"]
    for rule in skip:
        if not any(matches(package, rule) for package in packages):
            yield f"deny.toml: skip = {rule['crate']}: there is no such package"
    counted = [package for package in packages if not any(matches(package, rule) for rule in skip)]
    for name in sorted({package["name"] for package in counted}):
        versions = [package["version"] for package in counted if package["name"] == name]
        if len(versions) > 1:
            yield f"{name}: several versions: {', '.join(versions)}"


def check_use(members):
    """Yields dependencies that no source file of their package names."""
    used = set()
    for member in members:
        folder = Path(member["manifest_path"]).parent
        source = "\n".join(path.read_text() for path in folder.rglob("*.rs"))
        for dependency in member["dependencies"]:
            used.add(dependency["rename"] or dependency["name"])
            name = (dependency["rename"] or dependency["name"]).replace("-", "_")
            if not re.search(rf"\b{name}(::|;| as )", source):
                yield f"{member['name']}: does not use its dependency {dependency['name']}"
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    for name in manifest["workspace"]["dependencies"]:
        if name not in used:
            yield f"Cargo.toml: no member of the workspace depends on {name}"


def main():
    """Prints the violations; the exit status is 1 if there are any."""
    policy = tomllib.loads((ROOT / "deny.toml").read_text())
    members = json.loads(run_cargo("metadata", "--format-version=1", "--no-deps"))["packages"]
    problems = list(check_use(members))
    for target in policy["graph"]["targets"]:
        problems += check_policy(built_packages(target), policy)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        # cargo itself has printed the reason.
        sys.exit(error.returncode)
