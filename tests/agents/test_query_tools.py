"""The tools that ask tables and JSON documents: files as they come, and queries as models write them."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tool_calls import call, refusal

from treadle.agents.tools.child import ChildLimits
from treadle.agents.tools.local_tool import LocalTool
from treadle.agents.tools.query import query_tools
from treadle.agents.tools.query_work import work
from treadle.agents.tools.table_file import Table, read_json_document, read_table
from treadle.agents.tools.workspace import Workspace
from treadle.errors import ToolError

SALES = "day,region,amount\n2026-01-01,north,10\n2026-01-02,south,2.5\n2026-01-03,north,\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "sales.csv").write_text(SALES)
    workspace = Workspace(tmp_path)
    yield workspace
    workspace.close()


@pytest.fixture
def tools(workspace: Workspace) -> list[LocalTool]:
    return query_tools(workspace)


def ask(workspace: Workspace, sql: str = "", file: str = "sales.csv") -> str:
    """What the child would answer, without a child."""
    return work({"root": str(workspace.root), "fd": workspace.fd, "file": file, "sql": sql})


def rows(content: str | bytes, name: str = "x.csv") -> list[list[object]]:
    table = read_table(content if isinstance(content, bytes) else content.encode(), name)
    assert [list(row) for row in table.rows()] == [list(row) for row in table.rows()]
    return [list(row) for row in table.rows()]


def table(content: str | bytes, name: str = "x.csv") -> Table:
    return read_table(content if isinstance(content, bytes) else content.encode(), name)


def test_shows_what_a_table_has(tools: list[LocalTool]) -> None:
    assert call(tools, "query_table", file="sales.csv").split("\n") == [
        "sales.csv is the table data: 3 rows with the columns",
        "- day (text)",
        "- region (text)",
        "- amount (real)",
        "first rows:",
        "2026-01-01 | north | 10",
        "2026-01-02 | south | 2.5",
        "2026-01-03 | north | NULL",
    ]


def test_answers_a_query(tools: list[LocalTool]) -> None:
    sql = "```sql\nSELECT region, SUM(amount) AS total FROM sales GROUP BY region ORDER BY total DESC;\n```"
    assert (
        call(tools, "query_table", file="/workspace/sales.csv", sql=sql)
        == "region | total\nnorth | 10\nsouth | 2.5\n(2 rows)"
    )
    assert "nothing.csv is not there" in refusal(tools, "query_table", file="nothing.csv", sql="SELECT 1")


def test_files_beside_are_tables_by_their_names(workspace: Workspace) -> None:
    (workspace.root / "Heads.csv").write_text("region,head\nnorth,Ann\n")
    sql = "SELECT head, count(*) FROM data JOIN heads USING (region) GROUP BY head"
    assert ask(workspace, sql) == "head | count(*)\nAnn | 2\n(1 row)"
    assert ask(workspace, 'SELECT head FROM "heads.csv"') == "head\nAnn\n(1 row)"
    with pytest.raises(ToolError, match=r"no such table: others. The table data has the columns day, region, amount"):
        ask(workspace, "SELECT * FROM others")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM data",
        "DROP TABLE data",
        "INSERT INTO data VALUES (1, 2, 3)",
        "ATTACH '/tmp/x.db' AS x",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM pragma_table_info('data')",
        "SELECT load_extension('/tmp/x.so')",
        "VACUUM INTO '/tmp/x.db'",
        "CREATE VIRTUAL TABLE x USING fts5(y)",
        "SELECT 1; SELECT 2",
    ],
)
def test_nothing_but_reading_is_possible(workspace: Workspace, sql: str) -> None:
    with pytest.raises(ToolError, match=r"only one SELECT|query failed"):
        ask(workspace, sql)
    assert (workspace.root / "sales.csv").read_text() == SALES
    assert [each.name for each in workspace.root.iterdir()] == ["sales.csv"]


def test_a_wrong_column_is_answered_with_those_there_are(workspace: Workspace) -> None:
    (workspace.root / "odd.csv").write_text("Unit Price,order\n1,2\n")
    with pytest.raises(ToolError, match=r'no such column: price. The table data has the columns "Unit Price", order'):
        ask(workspace, "SELECT price FROM data", "odd.csv")
    assert ask(
        workspace, 'SELECT "unit price" AS "my price", "order" FROM data ORDER BY "my price"', "odd.csv"
    ).startswith("my price | ")


@pytest.mark.parametrize("sql", ['SELECT SUM("amout") FROM data', 'SELECT * FROM data WHERE region = "north"'])
def test_a_name_in_double_quotes_that_is_no_column_is_not_taken_for_text(workspace: Workspace, sql: str) -> None:
    with pytest.raises(ToolError, match=r"is no column; text stands in single quotes"):
        ask(workspace, sql)


def test_double_quotes_within_text_and_comments_are_no_names(workspace: Workspace) -> None:
    assert ask(workspace, 'SELECT \'say "no"\' AS x -- "none"\n/* "none" */') == 'x\nsay "no"\n(1 row)'


def test_many_rows_and_long_cells_are_cut(workspace: Workspace) -> None:
    (workspace.root / "long.csv").write_text("n\n" + "".join(f"{number}\n" for number in range(3000)))
    answer = ask(workspace, "SELECT n FROM data", "long.csv").split("\n")
    assert answer[:3] == ["n", "0", "1"]
    assert answer[50:] == ["49", "[cut: the first 50 of 3,000 rows; use LIMIT or sums]"]
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    assert ask(workspace, endless).endswith("[cut: the first 50 of more than 100,000 rows; use LIMIT or sums]")
    (workspace.root / "cell.csv").write_text(f'text\n"a\nb{"x" * 9999}"\n')
    assert "a\\nbxxx" in ask(workspace, "SELECT text FROM data", "cell.csv")
    assert len(ask(workspace, "SELECT text FROM data", "cell.csv")) < 300


def test_an_endless_query_is_stopped(workspace: Workspace) -> None:
    tools = query_tools(workspace, limits=ChildLimits(cpu_seconds=1))
    sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT sum(x) FROM c WHERE x < 0"
    assert "query_table took more than 1 s of CPU time" in refusal(tools, "query_table", file="sales.csv", sql=sql)


def test_a_query_for_all_memory_is_stopped(workspace: Workspace) -> None:
    tools = query_tools(workspace, limits=ChildLimits(memory_bytes=300 << 20))
    sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100000) SELECT hex(group_concat(zeroblob(100000))) FROM c"
    assert "memory" in refusal(tools, "query_table", file="sales.csv", sql=sql)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b\n1,2\n", [[1, 2]]),
        ("\ufeffa,b\r\n1,x y\r\n\r\n2,z", [[1, "x y"], [2, "z"]]),
        ("a;b\n1,5;2\n3;4\n", [[1.5, 2], [3.0, 4]]),
        ("a\tb\n1\t2\n", [[1, 2]]),
        ("a|b\n1|2,3\n", [[1, "2,3"]]),
        ('a,b\n"x, ""y""\nz",2\n', [['x, "y"\nz', 2]]),
        ("sep=;\na;b\n1;2\n", [[1, 2]]),
        ("a, b\n1, 2\n", [[1, 2]]),
        ("a\n1\n", [[1]]),
        ("a,b\r1,2\r", [[1, 2]]),
        ("a,b\n", []),
        ("a,b\n1,NA\n2,3\n", [[1, None], [2, 3]]),
        ("a,b\nNA,x\n-,y\n", [["NA", "x"], ["-", "y"]]),
        ("plz,id\n01234,12345678901234567890\n", [["01234", "12345678901234567890"]]),
        ("a,b\n1_000,1e5\n2,.5\n", [["1_000", 100000.0], ["2", 0.5]]),
        ("a,b\n1,inf\n", [[1, "inf"]]),
        ("a,b\n" + "".join(f"{n},9\n" for n in range(3)), [[0, 9], [1, 9], [2, 9]]),
    ],
)
def test_csv_as_it_comes(content: str, expected: list[list[object]]) -> None:
    assert rows(content) == expected


def test_rows_that_do_not_fit_the_header_are_kept_and_told_of() -> None:
    ragged = table("a,b\n1\n1,2,3\n4,5\n")
    assert [list(row) for row in ragged.rows()] == [[1, None, None], [1, 2, 3], [4, 5, None]]
    assert ragged.columns == ["a", "b", "column_3"]
    assert [note.partition(";")[0] for note in ragged.notes] == [
        "rows with fewer fields than the header: 1",
        "rows with more fields than the header: 1",
    ]


def test_headers_become_names_that_differ() -> None:
    assert table("a,A, a ,,\n").columns == ["a", "A_2", "a_3", "column_4", "column_5"]


@pytest.mark.parametrize(
    ("content", "name", "problem"),
    [
        (b"", "x.csv", "x.csv is empty"),
        (b"\n\n  \n", "x.csv", "x.csv is empty"),
        (b"a,b\0\n", "x.csv", "binary"),
        (b'a,b\n"open,2\n' + b"x,y\n" * 400_000, "x.csv", "a quote may not be closed"),
        (b"," * 600, "x.csv", "601 fields; a table has at most 500"),
        (b'{"a": 1}', "x.json", "one object with a and no list of rows; query_json reads it"),
        (b"[1, 2", "x.json", "x.json is no JSON"),
        (b'{"a": 1}\n{"a": \n', "x.jsonl", "x.jsonl, line 2, is no JSON"),
        (b"[" * 100_000, "x.json", "nested too deep"),
    ],
)
def test_what_is_no_table_is_one_clear_error(content: bytes, name: str, problem: str) -> None:
    with pytest.raises(ToolError) as caught:
        read_table(content, name)
    assert problem in str(caught.value)


def test_json_rows_are_a_table() -> None:
    lines = b'{"a": 1, "b": {"c": [1]}}\n\n{"b": null, "d": true, "a": 99999999999999999999}\n'
    assert rows(lines, "x.jsonl") == [[1, '{"c": [1]}', None], ["99999999999999999999", None, 1]]
    assert rows(b'["x", 2]', "x.json") == [["x"], [2]]
    assert rows(b"[]", "x.json") == []


def test_sums_agree_with_python(workspace: Workspace) -> None:
    """An independent reading of the same file: the csv module with floats."""
    content = "k,v\n" + "".join(f"k{n % 7},{n * n % 101 / 4}\n" for n in range(500))
    (workspace.root / "sums.csv").write_text(content)
    expected: dict[str, float] = {}
    for row in csv.DictReader(content.splitlines()):
        expected[row["k"]] = expected.get(row["k"], 0.0) + float(row["v"])
    answer = ask(workspace, "SELECT k, SUM(v) FROM data GROUP BY k ORDER BY k", "sums.csv").split("\n")[1:-1]
    assert answer == [f"{key} | {value:.12g}" for key, value in sorted(expected.items())]


DOCUMENT = {"users": [{"name": "Ann", "age": 41}, {"name": "Bo", "age": 7}], "a b": None}


@pytest.fixture
def document(workspace: Workspace) -> None:
    (workspace.root / "users.json").write_text(json.dumps(DOCUMENT))


@pytest.mark.usefixtures("document")
def test_shows_the_outline_of_a_document(tools: list[LocalTool]) -> None:
    assert call(tools, "query_json", file="users.json").split("\n") == [
        "@: object with 2 keys",
        "users: list of 2",
        "users[0]: object with 2 keys",
        'users[0].name: "Ann"',
        "users[0].age: 41",
        '"a b": null',
    ]


@pytest.mark.usefixtures("document")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("users[1].name", "Bo"),
        ("$.users[0].age", "41"),
        (".users[*].age", "[\n 41,\n 7\n]"),
        ("users[?age > `18`].name | [0]", "Ann"),
        ("length(users)", "2"),
    ],
)
def test_follows_paths(tools: list[LocalTool], path: str, expected: str) -> None:
    assert call(tools, "query_json", file="users.json", path=path) == expected


@pytest.mark.usefixtures("document")
def test_a_path_to_nothing_shows_what_there_is(tools: list[LocalTool]) -> None:
    assert call(tools, "query_json", file="users.json", path="user").startswith(
        "nothing is there; the document has\n@: obj"
    )
    assert "is no JMESPath" in refusal(tools, "query_json", file="users.json", path="users[")
    assert "is no JMESPath" in refusal(tools, "query_json", file="users.json", path="sum(users)")
    assert "is no JMESPath" in refusal(tools, "query_json", file="users.json", path="[" * 5000 + "]" * 5000)
    assert "at most 10,000" in refusal(tools, "query_json", file="users.json", path="x" * 20_000)


def test_a_table_is_no_document(tools: list[LocalTool]) -> None:
    assert refusal(tools, "query_json", file="sales.csv") == "sales.csv is a table and no JSON; query_table reads it"


def test_json_lines_are_a_list() -> None:
    assert read_json_document(b'{"a": 1}\n{"a": 2}\n', "x.jsonl") == [{"a": 1}, {"a": 2}]


def test_the_check_of_quotes_is_needed() -> None:
    """SQLite as it is built here, or anywhere: if it began to refuse these by itself, the message would be its own."""
    connection = sqlite3.connect(":memory:")
    try:
        assert connection.execute('SELECT "nothing"').fetchall() == [("nothing",)]
    except sqlite3.OperationalError as error:
        assert "no such column" in str(error)
    finally:
        connection.close()
