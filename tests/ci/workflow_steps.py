"""Runs a job of a workflow here, as GitHub does it: every `run` step of the file itself, in order, in a clone.

What of GitHub's language the workflows use is evaluated, and what is not known is an error, so that a workflow cannot
use more than this tests. Actions are done without: `actions` says by what.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
Action = Callable[[dict[str, Any]], None]
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Step:
    """A step that was run."""

    name: str
    command: str
    code: int
    output: str


@dataclass
class Job:
    """One job's run.

    Attributes:
        workflow: The file's content.
        name: The job's.
        checkout: The clone it runs in.
        scratch: An empty folder.
        known: Values of expressions beside `steps.…`: "needs.build.outputs.image", "secrets.GITHUB_TOKEN".
        environment: What GitHub and the runner have in the environment; it wins over the file's.
        actions: What stands in for an action, by its name without the commit.
        stand_ins: What takes the place of a part of a command: where it needs a GPU, root of a machine, a registry.
    """

    workflow: dict[str, Any]
    name: str
    checkout: Path
    scratch: Path
    known: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    actions: Mapping[str, Action] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> list[Step]:
        """Every step, until one fails; after that those of `if: always()`."""
        self._outputs: dict[str, str] = {}
        self.replaced: set[str] = set()
        done: list[Step] = []
        for index, step in enumerate(self._job["steps"]):
            condition = step.get("if", "success()")
            assert condition in ("success()", "always()"), f"a condition that is not tested: {condition}"
            if condition == "success()" and any(earlier.code for earlier in done):
                continue
            if "uses" in step:
                self.actions[step["uses"].partition("@")[0]](step.get("with", {}))
            else:
                done.append(self._step(index, step))
        return done

    def outputs(self) -> dict[str, str]:
        """The job's own."""
        return {key: self._evaluated(value) for key, value in self._job.get("outputs", {}).items()}

    @property
    def _job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.workflow["jobs"][self.name]
        return found

    def _step(self, index: int, step: dict[str, Any]) -> Step:
        assert self.workflow["defaults"] == {"run": {"shell": "bash"}}
        assert "${{" not in step["run"], "an expression in a script is code that others may write: take it from env"
        files = {key: self.scratch / f"{key}-{index}" for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.touch()
        environment = {**os.environ, "GITHUB_ACTIONS": "true", "CI": "true"}
        for level in (self.workflow, self._job, step):
            environment |= {key: self._evaluated(str(value)) for key, value in level.get("env", {}).items()}
        environment |= self.environment
        environment |= {key: str(path) for key, path in files.items()}
        script = self.scratch / f"step-{index}.sh"
        script.write_text(self._with_stand_ins(step["run"]))
        # https://docs.github.com/actions/reference/workflows-and-actions/workflow-syntax: what `shell: bash` is
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        for line in files["GITHUB_OUTPUT"].read_text().splitlines():
            key, _, value = line.partition("=")
            self._outputs[f"steps.{step['id']}.outputs.{key}"] = value
        return Step(step.get("name", ""), step["run"], done.returncode, done.stdout)

    def _with_stand_ins(self, command: str) -> str:
        for real, stand_in in self.stand_ins.items():
            if real in command:
                self.replaced.add(real)
                command = command.replace(real, stand_in)
        return command

    def _evaluated(self, text: str) -> str:
        return _EXPRESSION.sub(lambda match: {**self.known, **self._outputs}[match[1]], text)
