"""What a training asks the process that draws it for."""

import msgspec

from undertow.show.terminal.ability import Ability


class Order(msgspec.Struct, frozen=True):
    folder: str
    title: str
    process_group: int  # of the training: it has the terminal as long as this group is in the foreground
    control: int  # the pipe that speaks or ends when the picture is to leave
    done: int  # the pipe that ends when it has left
    share: float  # of the rows of the terminal
    most: int  # rows
    ability: Ability
    total_steps: int | None = None
