"""The 32 prompts of the parity goldens: eight each in English, Chinese, code and chat. Two exceed 512 tokens."""

from __future__ import annotations

_WEATHER = ("clear", "overcast", "rain until noon", "fog in the valley", "strong wind from the west", "light snow")
_LOG = "".join(
    f"Day {day}. Weather: {_WEATHER[day % 6]}. Barometer {990 + day * 7 % 31} hPa, {day * 5 % 23} degrees at dawn. "
    f"The mast was checked and {day * 3 % 7} samples were sealed.\n"
    for day in range(1, 26)
)
_LEDGER = "".join(
    f"第{day}日:米{day * 3 % 17 + 2}石入库,布{day * 5 % 11 + 1}匹出库,银{day * 7 % 29 + 3}两。掌柜记于灯下。\n"
    for day in range(1, 29)
)

ENGLISH = (
    "The capital of France is",
    "Once upon a time, in a village at the edge of a great forest, there lived",
    "Photosynthesis is the process by which plants",
    "In 1969, the first humans landed on the Moon. The mission was called",
    "A queue is a line of waiting customers. The average time that a customer spends in the system is",
    "To make a good cup of tea, first",
    "The three most important things to know about electric cars are:\n1.",
    "Log of the mountain station.\n" + _LOG + "Day 26. Weather:",
)
CHINESE = (
    "中国的首都是",
    "从前有一座山,山上有一座庙,庙里有一个老和尚",
    "水的化学式是",
    "人工智能是计算机科学的一个分支,它",
    "今天天气很好,我们决定去",
    "《红楼梦》是中国古典小说的代表作之一,作者是",
    "学习编程的三个步骤:第一,",
    "客栈账本。\n" + _LEDGER + "第29日:",
)
CODE = (
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void) {\n    ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "SELECT name, COUNT(*) FROM orders\nWHERE ",
    "function debounce(fn, delay) {\n  let timer = null;\n  return ",
    "import numpy as np\n\ndef softmax(x):\n    ",
    "fn main() {\n    let numbers = vec![3, 1, 4, 1, 5];\n    let sum: i32 = ",
    "# Read a CSV file and print the mean of each column\nimport csv\n\n",
)
CHAT: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "What is gravity?"}],
    [{"role": "user", "content": "用一句话介绍一下北京。"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [{"role": "user", "content": "Write a Python function that reverses a string."}],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name?"},
    ],
    [{"role": "user", "content": "Translate to French: good morning, my friend."}],
    [{"role": "user", "content": "List five fruits, one a line."}],
    [{"role": "system", "content": "你是一个乐于助人的助手。"}, {"role": "user", "content": "什么是机器学习?"}],
)


def as_dialogue(messages: list[dict[str, str]]) -> str:
    """How a base model without a chat template is asked."""
    return "".join(f"{m['role'].capitalize()}: {m['content']}\n" for m in messages) + "Assistant:"
