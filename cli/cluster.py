"""`headrace cluster`: its id, an agent unregistered, the cluster described in files.

Place: a Kafka client for a running cluster; Kafka's kafka-cluster.sh. described/ has the parts of plan, apply,
export and schema, which are composed here.
Invariant of a described cluster: `plan` and a refused `apply` change nothing. All errors are named at once, with
file and line. Nothing is deleted without --prune, and nothing that holds records without a further flag. `apply`
ends when the cluster shows what is described: a new plan is empty.
Invariant: an unknown node id is an error; unregistering can be repeated safely.
Source: KIP-631, kafka-cluster.sh.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace.cli.described.current import FoundCluster, read_cluster
from headrace.cli.described.diff import ApplyPlan, Scope, Wishes, make_plan
from headrace.cli.described.execution import Failed, Passwords, check_steps, read_passwords, run_steps
from headrace.cli.described.exporting import add_export, run_export
from headrace.cli.described.reading import Description, nothing_changed, read_description
from headrace.cli.described.schema import json_schema
from headrace.cli.described.state import Action, ApplyStep, FieldChange, ObjectKind, Risk
from headrace.cli.options import INT32_MAX, whole
from headrace.cli.output import write
from headrace.cli.tables import add_flags, add_yes, confirm, open_cluster
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, UnavailableError

STATUS_DIFFERENT = 2
LOOKS_MAX = 120
PAUSE_SECONDS = 0.5
"""How often `apply` looks whether the cluster shows its changes: brokers learn of them one after another."""
SIGNS = {Action.CREATE: "+", Action.ALTER: "~", Action.DELETE: "-"}
_ALLOWED = {Risk.DATA: "allow_data_loss", Risk.PARTITIONS: "allow_fewer_partitions"}
_EFFECTS = {Risk.DATA: "may remove records", Risk.PARTITIONS: "removes partitions once they are empty"}


def add_commands(commands: Any) -> None:
    """Add the commands to those of `headrace cluster`."""
    planning = commands.add_parser(
        "plan", help="show what `apply` would change; exit status 2 if there is a difference"
    )
    applying = commands.add_parser("apply", help="make the cluster what the files describe")
    exporting = commands.add_parser("export", help="print the cluster as a file that describes it")
    showing = commands.add_parser("schema", help="print the JSON Schema of the files, for editors")
    for command in (planning, applying):
        _add_description(command)
    add_yes(applying)
    applying.add_argument("--dry-run", action="store_true", help="check all, also passwords, and change nothing")
    add_export(exporting)
    for command, run in ((planning, run_plan), (applying, run_apply), (exporting, run_export)):
        add_flags(command)
        command.set_defaults(run=run)
    _exit_with_1_for_wrong_usage(planning)
    for command in (exporting, planning, applying):
        command.add_argument(
            "--secrets",
            default="secrets",
            metavar="DIR",
            help="directory with password files, next to FILE (secrets)",
        )
    showing.set_defaults(run=run_schema)


def _add_description(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--file", "-f", action="append", required=True, metavar="PATH", help="file or directory; - is standard input"
    )
    command.add_argument(
        "--prune",
        action="append",
        default=[],
        type=_scope,
        metavar="KIND[:PREFIX]",
        help=f"delete what is not described: {', '.join(ObjectKind)}; with PREFIX only names that begin with it",
    )
    command.add_argument(
        "--allow-data-loss", action="store_true", help="also steps that may remove records, and deletions of topics"
    )
    command.add_argument("--allow-fewer-partitions", action="store_true", help="also lower numbers of partitions")
    command.add_argument("--set-passwords", action="store_true", help="set the passwords of all described users again")


def _exit_with_1_for_wrong_usage(parser: argparse.ArgumentParser) -> None:
    """A script must not take a wrong flag for a difference."""

    def refuse(message: str) -> None:
        parser.print_usage(sys.stderr)
        parser.exit(1, f"{parser.prog}: error: {message}\n")

    parser.error = refuse  # type: ignore[method-assign,assignment]


def _scope(text: str) -> Scope:
    word, _, prefix = text.partition(":")
    try:
        return Scope(ObjectKind(word), prefix)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not one of {', '.join(ObjectKind)}: {word}") from error


def run_plan(args: argparse.Namespace) -> int:
    """Print the steps; 2 if there are any."""
    description = read_description(args.file, args.secrets)
    with open_cluster(args) as cluster:
        plan = _planned(args, cluster, description)
        _refuse(description, plan, check_steps(cluster, plan.steps, description.state, only_reads=True))
    _show(args, description, plan.steps)
    return STATUS_DIFFERENT if plan.steps else 0


def run_apply(args: argparse.Namespace) -> int:
    """Carry out the steps, and print each that is done; then wait until the cluster shows them all."""
    description = read_description(args.file, args.secrets)
    with open_cluster(args) as cluster:
        plan = _planned(args, cluster, description)
        passwords, failed = read_passwords(plan.steps, description.state)
        failed += [(step, _why_not(step)) for step in plan.steps if not _is_allowed(args, step)]
        failed += check_steps(cluster, plan.steps, description.state, only_reads=False)
        _refuse(description, plan, failed)
        if args.dry_run:
            _show(args, description, plan.steps)
            return 0
        _confirm(args, plan.steps)
        done: list[ApplyStep] = []
        _carry_out(args, cluster, description, plan.steps, passwords, done)
        args.set_passwords = False
        for _ in range(LOOKS_MAX):
            left = rest_of(_planned(args, cluster, description).steps, done)
            if not left:
                break
            if new := [step for step in left if step not in done]:
                _carry_out(args, cluster, description, _harmless(new), passwords, done)
            else:
                cluster.pause(PAUSE_SECONDS)
        else:
            raise UnavailableError(f"the cluster does not show all changes yet, among them: {left[0].name}")
    if args.json:
        _print_json(description, done)
    elif not done:
        write("no difference")
    return 0


def rest_of(steps: Iterable[ApplyStep], done: Sequence[ApplyStep]) -> list[ApplyStep]:
    """Return the steps that have no effect yet.

    Two effects are not waited for: a removed partition stays visible until it is empty, and a setting that is deleted
    gets the value of the agents' files.
    """
    return [step for step in steps if step not in done or not _may_stay(step)]


def _may_stay(step: ApplyStep) -> bool:
    is_setting = step.kind is ObjectKind.CONFIG and step.action is Action.DELETE
    return is_setting or step.risk is Risk.PARTITIONS


def _carry_out(
    args: argparse.Namespace,
    cluster: KafkaCluster,
    description: Description,
    steps: Sequence[ApplyStep],
    passwords: Passwords,
    done: list[ApplyStep],
) -> None:
    count = 0
    try:
        for step in run_steps(cluster, steps, description.state, passwords):
            count += 1
            done.append(step)
            if not args.json:
                write(_line(description, step), flush=True)
    except HeadraceError as error:
        rest = f"{count} of {len(steps)} steps are done; repeat the command to do the rest"
        raise type(error)(f"{steps[count].name}: {error}\n  {rest}") from error


def _harmless(steps: Sequence[ApplyStep]) -> Sequence[ApplyStep]:
    """Return the steps that became necessary during the run. InvalidError if one of them needs a confirmation.

    A broker that did not know a topic yet said that it had to be created: it exists, with other values.
    """
    for step in steps:
        if step.risk is not Risk.NONE or step.action is Action.DELETE or step.kind is ObjectKind.USER:
            raise InvalidError(f"the cluster changed during the run, repeat the command: {step.action} {step.name}")
    return steps


def run_schema(args: argparse.Namespace) -> int:
    """Print the schema."""
    write(json_schema(), end="")
    return 0


def _planned(args: argparse.Namespace, cluster: KafkaCluster, description: Description) -> ApplyPlan:
    found = _found(args, cluster, description)
    wishes = Wishes(tuple(args.prune), args.set_passwords)
    return make_plan(description.state, found.state, wishes, found.facts)


def _found(args: argparse.Namespace, cluster: KafkaCluster, description: Description) -> FoundCluster:
    """Read the parts of the cluster that the plan needs: kinds that are described or pruned."""
    kinds = {kind for kind, _ in description.places} | {scope.kind for scope in args.prune}
    state = description.state
    return read_cluster(cluster, kinds, state.topics.keys(), state.configs.keys())


def _is_allowed(args: argparse.Namespace, step: ApplyStep) -> bool:
    return step.risk is Risk.NONE or getattr(args, _ALLOWED[step.risk])


def _why_not(step: ApplyStep) -> str:
    effect = "deletes all its records" if step.action is Action.DELETE else _EFFECTS[step.risk]
    return f"{effect}: allow it with {step.risk}"


def _refuse(description: Description, plan: ApplyPlan, failed: Iterable[Failed]) -> None:
    """InvalidError with all reasons, if there are any."""
    reasons = [(refusal.kind, refusal.key, refusal.reason) for refusal in plan.refusals]
    reasons += [(step.kind, step.key, reason) for step, reason in failed]
    lines = []
    for kind, key, reason in reasons:
        place = description.places.get((kind, key))
        name = ApplyStep(Action.ALTER, kind, key).name
        lines.append(f"{f'{place}: ' if place else ''}{name}: {reason}")
    if lines:
        raise nothing_changed(lines)


def _confirm(args: argparse.Namespace, steps: Sequence[ApplyStep]) -> None:
    """Deletions and steps with a risk need a confirmation."""
    grave = [step for step in steps if step.action is Action.DELETE or step.risk is not Risk.NONE]
    if grave:
        named = "; ".join(f"{step.action} {step.name}" for step in grave)
        confirm(args, f"{len(grave)} of {len(steps)} steps cannot be undone: {named}?")


def _show(args: argparse.Namespace, description: Description, steps: Sequence[ApplyStep]) -> None:
    if args.json:
        _print_json(description, steps)
        return
    for step in steps:
        allowed = "" if _is_allowed(args, step) else f"  ({_why_not(step)})"
        write(f"{_line(description, step)}{allowed}")
    counts = [(action, sum(step.action is action for step in steps)) for action in Action]
    write(", ".join(f"{count} to {action}" for action, count in counts if count) or "no difference")


def _line(description: Description, step: ApplyStep) -> str:
    """`~ topic orders: retention.ms 1000 -> 2000  [topics.yaml:3]`."""
    changes = ", ".join(
        _changed(step, change) for change in step.changes if (change.before, change.after) != (None, None)
    )
    place = description.places.get((step.kind, step.key))
    return f"{SIGNS[step.action]} {step.name}{f': {changes}' if changes else ''}{f'  [{place}]' if place else ''}"


def _changed(step: ApplyStep, change: FieldChange) -> str:
    name = "" if step.kind is ObjectKind.CONFIG else f"{change.field} "
    if change.before is None:
        return f"{name}{change.after}"
    return f"{name}{change.before} -> {'default' if change.after is None else change.after}"


def _print_json(description: Description, steps: Sequence[ApplyStep]) -> None:
    rows = []
    for step in steps:
        place = description.places.get((step.kind, step.key))
        rows.append(
            {
                "action": step.action,
                "kind": step.kind,
                "name": step.name,
                "changes": [change._asdict() for change in step.changes],
                "risk": step.risk or None,
                "file": place.file if place else None,
                "line": place.line if place else None,
            }
        )
    write(json.dumps(rows))


TELLS_OF_FENCED_BROKERS = 2
"""The first version of DescribeCluster with a response that can list every registered broker."""

DESCRIPTION = """\
A running cluster: show its id, unregister an agent, or make it what files describe.

  headrace cluster cluster-id -b 127.0.0.1:9092
  headrace cluster export -b 127.0.0.1:9092 > cluster.yaml
  headrace cluster export --from-kafka kafka:9092 --command-config old.properties > cluster.yaml
  headrace cluster plan -f cluster.yaml -b 127.0.0.1:9092
  headrace cluster apply -f cluster.yaml -b 127.0.0.1:9092
  headrace cluster schema > cluster-file.schema.json
  headrace cluster unregister -i 3 -b 127.0.0.1:9092      an agent that will not return
"""


ACTIONS = "{cluster-id,unregister,plan,apply,export,schema}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar=ACTIONS, required=True)
    showing = commands.add_parser("cluster-id", help="print the cluster's id")
    showing.set_defaults(run=run_cluster_id)
    leaving = commands.add_parser("unregister", help="remove the registration of an agent")
    node_id = whole(0, INT32_MAX)
    leaving.add_argument("--id", "-i", type=node_id, required=True, metavar="ID", help="node id of the agent")
    leaving.set_defaults(run=run_unregister)
    for command in (showing, leaving):
        command.add_argument("--bootstrap-server", "-b", metavar="SERVERS", help="host:port pairs, comma-separated")
        command.add_argument(
            "--config", "--command-config", "-c", type=Path, metavar="FILE", help="properties file of the admin client"
        )
    add_commands(commands)


def run_cluster_id(args: argparse.Namespace) -> int:
    """Print the id."""
    with open_cluster(args) as cluster:
        write(f"Cluster ID: {_describe(cluster).cluster_id}")
    return 0


def run_unregister(args: argparse.Namespace) -> int:
    """Unregister the agent; NotFoundError if it is not registered, even where the cluster would accept the
    request.
    """
    with open_cluster(args) as cluster:
        tells = cluster.message(ApiKey.DESCRIBE_CLUSTER).version >= TELLS_OF_FENCED_BROKERS
        if tells and args.id not in {broker.broker_id for broker in _describe(cluster).brokers}:
            raise NotFoundError(f"broker {args.id} is not registered")
        m = cluster.message(ApiKey.UNREGISTER_BROKER)
        answer = cluster.ask(ApiKey.UNREGISTER_BROKER, m.request(broker_id=args.id))
        require(answer.error_code, answer.error_message, f"broker {args.id}")
    write(f"Broker {args.id} is no longer registered.")
    return 0


def _describe(cluster: KafkaCluster) -> Any:
    """The cluster, with all registered brokers if the cluster supports that."""
    m = cluster.message(ApiKey.DESCRIBE_CLUSTER)
    request = m.request(include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=True)
    answer = cluster.ask(ApiKey.DESCRIBE_CLUSTER, request)
    require(answer.error_code, answer.error_message)
    return answer
