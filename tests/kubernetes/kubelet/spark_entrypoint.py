"""What /opt/entrypoint.sh of Spark's image does: `executor` starts Spark's executor; all else is a command.

Place: the entrypoint of image `headrace-spark` here. The variables are those that Spark's driver gives the pod
(resource-managers/kubernetes/docker/src/main/dockerfiles/spark/entrypoint.sh, Spark 4).
"""

from __future__ import annotations

import os
import re
import sys

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


def executor_command(environment: dict[str, str]) -> list[str]:
    """The JVM of an executor."""
    options = sorted(
        (int(match[1]), value)
        for name, value in environment.items()
        if (match := re.fullmatch(r"SPARK_JAVA_OPT_(\d+)", name))
    )
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    classes = ":".join(
        part for part in (environment.get("SPARK_CLASSPATH"), f"{environment['SPARK_HOME']}/jars/*") if part
    )
    return [
        f"{environment['JAVA_HOME']}/bin/java", *(value for _, value in options), f"-Xms{memory}", f"-Xmx{memory}",
        "-cp", classes, BACKEND,
        "--driver-url", environment["SPARK_DRIVER_URL"], "--executor-id", environment["SPARK_EXECUTOR_ID"],
        "--cores", environment["SPARK_EXECUTOR_CORES"], "--app-id", environment["SPARK_APPLICATION_ID"],
        "--hostname", environment["SPARK_EXECUTOR_POD_IP"],
        "--resourceProfileId", environment["SPARK_RESOURCE_PROFILE_ID"],
        "--podName", environment["SPARK_EXECUTOR_POD_NAME"],
    ]  # fmt: skip


def main() -> None:
    """Replace this process by the command."""
    command = sys.argv[1:]
    if command and command[0] == "executor":
        command = executor_command(dict(os.environ))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
