//! The panels of the dashboard, with queries as Grafana would send them.

use serde_json::Value;

const DASHBOARD: &str = include_str!("../../dashboards/grafana.json");

/// Four times the interval of the scrapes, as Grafana makes of `$__rate_interval`.
pub const WINDOW: &str = "8s";

pub struct Panel {
    pub title: String,
    pub queries: Vec<Query>,
}

pub struct Query {
    pub text: String,
    pub legend: String,
}

pub fn all() -> Vec<Panel> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").map(panel).collect()
}

pub fn titled(title: &str) -> Panel {
    let found = all().into_iter().find(|panel| panel.title == title);
    found.unwrap_or_else(|| panic!("there is no panel {title:?}"))
}

fn panel(panel: &Value) -> Panel {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let query = |target: &Value| Query {
        text: text(&target["expr"])
            .replace("$__rate_interval", WINDOW)
            .replace("$__range", WINDOW)
            .replace("$cache", ".*")
            .replace("$locks", ".*")
            .replace("$schedule", ".*")
            .replace("$job", ".*")
            .replace("$namespace", ".*"),
        legend: text(&target["legendFormat"]),
    };
    let queries: Vec<_> = panel["targets"].as_array().unwrap().iter().map(query).collect();
    let title = text(&panel["title"]);
    let left = queries.iter().find(|query| query.text.contains('$'));
    assert!(left.is_none(), "{title:?} has a variable that this test does not know");
    Panel { title, queries }
}
