"""Says on stderr that a file is damaged, and what of it is lost."""

from pathlib import Path

from inferwatch.cli.say import say


def say_damage(path: Path) -> None:
    """Nothing of a sound file."""
    from inferwatch.storage.repair.recovery import damage_of

    damage = damage_of(path) if path.exists() else None
    if damage is not None:
        say(f"inferwatch: {damage.sentence}", err=True)
