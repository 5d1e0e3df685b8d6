"""Twenty small tasks for agents, each with a check of what came out: code, tables, files, and facts found step by step.

Leaves to others: the agent and its tools (``agent_success.py``).
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treadle import ToolError

KINDS = ("code", "table", "file", "lookup")

# What the lookup tools know. Every chain of questions below has one end.
PEOPLE = {
    "Ada Brandt": {"manager": "Noor Haddad", "team": "compilers"},
    "Noor Haddad": {"manager": "Ivo Petrov", "team": "compilers"},
    "Ivo Petrov": {"manager": "none", "team": "platform"},
    "Mei Tanaka": {"manager": "Ivo Petrov", "team": "storage"},
    "Luis Ortega": {"manager": "Mei Tanaka", "team": "storage"},
}
TEAMS = {
    "compilers": {"office": "Oslo", "budget": 410},
    "platform": {"office": "Lisbon", "budget": 760},
    "storage": {"office": "Nairobi", "budget": 325},
}
OFFICES = {
    "Oslo": {"country": "Norway", "desks": 48},
    "Lisbon": {"country": "Portugal", "desks": 120},
    "Nairobi": {"country": "Kenya", "desks": 64},
}


@dataclass(frozen=True)
class AgentTask:
    """What an agent is asked, what lies in its folder before, and whether its answer and the folder are right after."""

    name: str
    kind: str
    text: str
    is_right: Callable[[str, Path], bool]
    files: Mapping[str, str] = field(default_factory=dict)

    def lay_out(self, folder: Path) -> None:
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def says(expected: str) -> Callable[[str, Path], bool]:
    """The answer has this word or number, whatever stands around it; thousands may be separated."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(expected)}(?:\.0+)?(?!\w|\.\d)", re.IGNORECASE)
    return lambda answer, _: pattern.search(re.sub(r"(?<=\d),(?=\d{3})", "", answer)) is not None


def holds(name: str, expected: str) -> Callable[[str, Path], bool]:
    """A file has exactly this text, but for space at its end."""

    def check(_: str, folder: Path) -> bool:
        path = folder / name
        return path.is_file() and path.read_text(encoding="utf-8").rstrip() == expected.rstrip()

    return check


def _sales() -> tuple[str, list[dict[str, str]]]:
    chance = random.Random("sales")
    rows = [
        {
            "day": f"2026-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}",
            "region": chance.choice(("north", "south", "east", "west")),
            "product": chance.choice(("lamp", "chair", "table", "shelf", "rug")),
            "units": str(chance.randrange(1, 40)),
            "amount": f"{chance.randrange(500, 90000) / 100:.2f}",
        }
        for _ in range(240)
    ]
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    return "\n".join(lines) + "\n", rows


def _code_tasks() -> list[AgentTask]:
    multiples = sum(number for number in range(5000) if number % 7 == 0 or number % 11 == 0)
    digits = sum(int(digit) for digit in str(2**200))
    primes = sum(all(number % each for each in range(2, int(number**0.5) + 1)) for number in range(2, 3000))
    collatz = 27
    steps = 0
    while collatz != 1:
        collatz = 3 * collatz + 1 if collatz % 2 else collatz // 2
        steps += 1
    letters = Counter("the quick brown fox jumps over the lazy dog while the cat sleeps")
    return [
        AgentTask(
            "multiples",
            "code",
            "What is the sum of all whole numbers below 5000 that are multiples of 7 or of 11?",
            says(str(multiples)),
        ),
        AgentTask(
            "digits", "code", "What is the sum of the decimal digits of 2 to the power of 200?", says(str(digits))
        ),
        AgentTask("primes", "code", "How many prime numbers are there below 3000?", says(str(primes))),
        AgentTask(
            "collatz",
            "code",
            "Start with 27. If the number is even halve it, else take three times it plus one. "
            "After how many steps is it 1 for the first time?",
            says(str(steps)),
        ),
        AgentTask(
            "letters",
            "code",
            "How often does the letter e occur in this text: "
            "'the quick brown fox jumps over the lazy dog while the cat sleeps'?",
            says(str(letters["e"])),
        ),
    ]


def _table_tasks() -> list[AgentTask]:
    text, rows = _sales()
    by_region: Counter[str] = Counter()
    by_product: Counter[str] = Counter()
    for row in rows:
        by_region[row["region"]] += round(float(row["amount"]) * 100)
        by_product[row["product"]] += int(row["units"])
    large = sum(float(row["amount"]) > 800 for row in rows)
    march = sum(row["day"].startswith("2026-03") for row in rows)
    dearest = max(rows, key=lambda row: float(row["amount"]))
    files = {"sales.csv": text}
    about = "The file sales.csv has the columns day, region, product, units and amount. "
    return [
        AgentTask(
            "best region",
            "table",
            about + "Which region has the largest total amount?",
            says(by_region.most_common(1)[0][0]),
            files,
        ),
        AgentTask(
            "lamps",
            "table",
            about + "How many units of the product lamp were sold in all?",
            says(str(by_product["lamp"])),
            files,
        ),
        AgentTask("large sales", "table", about + "How many rows have an amount above 800?", says(str(large)), files),
        AgentTask(
            "march",
            "table",
            about + "How many rows have a day in March 2026 (days look like 2026-03-17)?",
            says(str(march)),
            files,
        ),
        AgentTask(
            "dearest", "table", about + "On which day was the row with the largest amount?", says(dearest["day"]), files
        ),
    ]


def _file_tasks() -> list[AgentTask]:
    config = '[server]\nhost = "127.0.0.1"\nport = 8080\n\n[log]\nlevel = "info"\n'
    names = ["pear", "apple", "fig", "cherry", "banana"]
    script = "def area(width, height):\n    return width + height\n"
    notes = "alpha\nbeta\nOLD: call the bank\ngamma\n"
    return [
        AgentTask(
            "port",
            "file",
            "Change the port in the file config.toml from 8080 to 9090. Change nothing else.",
            holds("config.toml", config.replace("8080", "9090")),
            {"config.toml": config},
        ),
        AgentTask(
            "greeting",
            "file",
            "Make a file greeting.txt whose only line is: Good morning",
            holds("greeting.txt", "Good morning"),
        ),
        AgentTask(
            "bug",
            "file",
            "The function area in shapes.py should multiply width and height, but it adds them. Mend the file.",
            holds("shapes.py", script.replace("+", "*")),
            {"shapes.py": script},
        ),
        AgentTask(
            "remove",
            "file",
            "Remove the line that begins with OLD from notes.txt and keep the other lines.",
            holds("notes.txt", notes.replace("OLD: call the bank\n", "")),
            {"notes.txt": notes},
        ),
        AgentTask(
            "first",
            "file",
            "Which of the names in fruit.txt comes first in the alphabet?",
            says(min(names)),
            {"fruit.txt": "\n".join(names) + "\n"},
        ),
    ]


def _lookup_tasks() -> list[AgentTask]:
    team = TEAMS[PEOPLE[PEOPLE["Luis Ortega"]["manager"]]["team"]]
    return [
        AgentTask(
            "office",
            "lookup",
            "In which office does the team of Ada Brandt work?",
            says(str(TEAMS[PEOPLE["Ada Brandt"]["team"]]["office"])),
        ),
        AgentTask(
            "country",
            "lookup",
            "In which country is the office of the team of Mei Tanaka?",
            says(str(OFFICES[str(TEAMS[PEOPLE["Mei Tanaka"]["team"]]["office"])]["country"])),
        ),
        AgentTask(
            "manager",
            "lookup",
            "Who is the manager of the manager of Ada Brandt?",
            says(PEOPLE[PEOPLE["Ada Brandt"]["manager"]]["manager"]),
        ),
        AgentTask(
            "budget",
            "lookup",
            "What is the budget of the team in which the manager of Luis Ortega is?",
            says(str(team["budget"])),
        ),
        AgentTask(
            "desks",
            "lookup",
            "How many desks does the office of the team platform have?",
            says(str(OFFICES[str(TEAMS["platform"]["office"])]["desks"])),
        ),
    ]


def find_person(name: str) -> str:
    """Tell the manager and the team of a person.

    Args:
        name: First and last name.
    """
    return _find(PEOPLE, "person", name)


def find_team(name: str) -> str:
    """Tell the office and the budget of a team.

    Args:
        name: Name of the team.
    """
    return _find(TEAMS, "team", name)


def find_office(name: str) -> str:
    """Tell the country and the number of desks of an office.

    Args:
        name: The city of the office.
    """
    return _find(OFFICES, "office", name)


def _find(table: Mapping[str, Mapping[str, object]], kind: str, name: str) -> str:
    found = {key.lower(): value for key, value in table.items()}.get(name.strip().lower())
    if found is None:
        raise ToolError(f"there is no {kind} {name!r}; the names are {', '.join(table)}")
    return json.dumps(found)


def all_tasks() -> list[AgentTask]:
    return [*_code_tasks(), *_table_tasks(), *_file_tasks(), *_lookup_tasks()]
