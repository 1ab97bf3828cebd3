//! Tests of pipelines, and of limits of allocators and shares.

use super::*;

/// Returns the problems of an app with this pipeline.
fn pipeline_problems(tasks: &str, more: &str) -> Vec<String> {
    let text = format!(
        "name = \"traffic\"\n{more}\n[pipeline]\n{tasks}\n[[variants]]\nname = \"a\"\ndir = \"a\"\n[[variants]]\nname = \"b\"\ndir = \"b\"\n"
    );
    let app = App::parse(&text).unwrap();
    let problems = app.problems().into_iter();
    problems
        .filter(|problem| !problem.starts_with("variants"))
        .collect()
}

#[test]
fn what_is_no_tree_is_refused_by_name() {
    let task = |name: &str, variant: &str, children: &str| {
        format!(
            "[[pipeline.tasks]]\nname = \"{name}\"\nvariants = [\"{variant}\"]\nchildren = [{children}]\n"
        )
    };
    let (find, read) = (task("find", "a", "'read'"), task("read", "b", ""));
    assert_eq!(
        pipeline_problems(&(find.clone() + &read), ""),
        Vec::<String>::new()
    );
    for (tasks, message) in [
        (find.clone() + &task("read", "b", "'find'"), "find"),
        (find.clone() + &read + &task("see", "c", "'read'"), "read"),
        (task("find", "a", "'reed'") + &read, "reed"),
        (
            find.clone() + &task("read", "huge", ""),
            "`huge` is none of the variants",
        ),
        (find.clone() + &task("read", "a", ""), "a"),
    ] {
        let problems = pipeline_problems(&tasks, "");
        let named = problems.iter().find(|problem| problem.contains(message));
        assert!(
            named.is_some_and(|problem| problem.starts_with("pipeline.tasks")),
            "{message}: {problems:?}"
        );
    }
    let problems = pipeline_problems(&(find + &read), "[pipeline.planner]\n");
    assert!(
        problems[0].starts_with("pipeline.profile: is missing"),
        "{problems:?}"
    );
}

#[test]
fn an_allocators_figures_are_within_their_ranges() {
    let tasks = "[[pipeline.tasks]]\nname = \"find\"\nvariants = [\"a\"]\n";
    let message = |rule: &str| {
        let problems = pipeline_problems(tasks, &format!("[pipeline.planner]\n{rule}\n"));
        let found = problems
            .into_iter()
            .filter(|problem| problem.starts_with("pipeline.planner."));
        found.collect::<Vec<_>>().join("; ")
    };
    assert_eq!(message("run_times = { change = inf, decay = 0.0 }"), "");
    for (rule, path) in [
        (
            "run_times = { decay = 1.0 }",
            "pipeline.planner.run_times.decay: is 1",
        ),
        (
            "run_times = { change = -0.1 }",
            "pipeline.planner.run_times.change: is -0.1",
        ),
        (
            "standby = { surge_factor = 0.5 }",
            "pipeline.planner.standby.surge_factor: is 0.5",
        ),
        (
            "standby = { max_accuracy_loss = nan }",
            "pipeline.planner.standby.max_accuracy_loss: is NaN",
        ),
    ] {
        assert!(message(rule).starts_with(path), "{rule}: {}", message(rule));
    }
}

#[test]
fn a_share_of_a_core_is_a_share() {
    let text = "name = \"a\"\ncore_share = 1.5\n[[variants]]\nname = \"a\"\ndir = \"a\"\n";
    let (line, reason) = App::parse(text).unwrap_err();
    assert_eq!(line, 2);
    assert!(reason.contains("1.5 is not a share of a core"), "{reason}");
}
