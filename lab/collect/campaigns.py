"""List campaigns of measured traces, add traces to one, or write its traces to a folder.

    python -m lab collect campaigns list
    python -m lab collect campaigns pack NAME FOLDER
    python -m lab collect campaigns unpack NAME FOLDER

A key that the campaign already has is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab import needs
from lab.measured import campaigns


def main(given: Sequence[str] = ()) -> None:
    """List, pack or unpack campaigns."""
    parser = needs.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the campaigns and their sizes")
    for command, help_text in (
        ("pack", "add the traces of a folder to a campaign"),
        ("unpack", "write the traces of a campaign to a folder"),
    ):
        chosen = commands.add_parser(command, help=help_text)
        chosen.add_argument("name", help="the campaign")
        chosen.add_argument(
            "folder", type=Path, help=f"folder with one KEY{campaigns.SUFFIX} for each trace"
        )
    args = parser.parse_args(given)
    if args.command == "list":
        for name in campaigns.names():
            print(campaigns.describe(name))
    elif args.command == "pack":
        print(campaigns.pack(args.name, args.folder))
    else:
        campaigns.unpack(args.name, args.folder)
