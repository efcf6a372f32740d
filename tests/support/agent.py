"""A scripted agent: the client of the package `mcp`, which starts `clusterctl mcp` and talks to it over its stdin."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from support.scenario import CLUSTERCTL

from clusterctl.launcher.api.agents.plans import Plans
from clusterctl.launcher.api.agents.server import Agents, protocol_of


class Refused(Exception):
    """A tool's error: its message and hint."""


@dataclass
class Agent:
    """One client and its server. `answers` are given to the server's questions in turn, then "accept" for ever."""

    client: Client
    portal: BlockingPortal
    questions: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)  # every answer as received

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool. Raises Refused for an error."""
        result = self.portal.call(lambda: self.client.call_tool(tool, arguments))
        (content,) = result.content
        self.shown.append(content.text)
        answer: dict[str, Any] = json.loads(content.text)
        if result.is_error:
            raise Refused(f"{answer['error']} ({answer.get('hint', '')})")
        return answer

    def whole(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """All pages of an answer, joined."""
        page = self.call(tool, **arguments)
        answer: dict[str, Any] = {}
        while True:
            cursor = page.pop("next_cursor", None)
            page.pop("pages_left", None)
            for key, value in page.items():
                answer[key] = answer[key] + value if key in answer else value
            if cursor is None:
                return answer
            page = self.call("more", cursor=cursor)

    def tools(self) -> dict[str, types.Tool]:
        return {tool.name: tool for tool in self.portal.call(self.client.list_tools).tools}

    def apply(self, plan: dict[str, Any]) -> dict[str, Any]:
        return self.call("apply", token=plan["token"])


@contextmanager
def an_agent(
    server: Any, *, answers: list[str] | None = None, mode: str = "auto", can_ask: bool = True
) -> Iterator[Agent]:
    """A client of `server`, whose user gives these answers, and then agrees to everything."""
    waiting, questions = list(answers or ()), list[str]()

    async def answer(_: Any, asked: Any) -> types.ElicitResult:
        questions.append(asked.message)
        return types.ElicitResult(action=waiting.pop(0) if waiting else "accept", content={})  # type: ignore[arg-type]

    client = Client(server, mode=mode, elicitation_callback=answer if can_ask else None)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
        yield Agent(client, portal, questions)


def started(folder: Path, *options: str) -> StdioServerParameters:
    """A server that is started in `folder` with these options, in this process's environment."""
    return StdioServerParameters(command=CLUSTERCTL, args=["mcp", *options], env=dict(os.environ), cwd=folder)


def beside(plans: Plans) -> Any:
    """A server in this process, which starts in no time."""
    return protocol_of(Agents(plans))
