//! The settings that the page may choose, within their bounds.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::options::Options;

/// A setting that the page may choose, within its bounds.
struct Slider {
    name: &'static str,
    label: &'static str,
    unit: &'static str,
    least: u64,
    most: u64,
    step: u64,
    get: fn(&Options) -> u64,
    set: fn(&mut Options, u64),
}

const SLIDERS: [Slider; 7] = [
    Slider {
        name: "ttl",
        label: "a value lives for",
        unit: "ms",
        least: 200,
        most: 5000,
        step: 100,
        get: |options| milliseconds(options.ttl),
        set: |options, time| options.ttl = Duration::from_millis(time),
    },
    Slider {
        name: "load",
        label: "a query takes",
        unit: "ms",
        least: 10,
        most: 1000,
        step: 10,
        get: |options| milliseconds(options.load_time),
        set: |options, time| options.load_time = Duration::from_millis(time),
    },
    Slider {
        name: "processes",
        label: "replicas of the service",
        unit: "",
        least: 1,
        most: 32,
        step: 1,
        get: |options| options.fleet_size().into(),
        set: |options, count| {
            let fleet = options.processes.as_mut().unwrap_or(&mut options.replicas);
            *fleet = count as u16;
        },
    },
    Slider {
        name: "rate",
        label: "requests a second",
        unit: "",
        least: 10,
        most: 3000,
        step: 10,
        get: |options| options.rate.into(),
        set: |options, count| options.rate = count as u16,
    },
    Slider {
        name: "stale",
        label: "stale window, for old values",
        unit: "ms",
        least: 0,
        most: 60_000,
        step: 100,
        get: |options| milliseconds(options.stale),
        set: |options, time| options.stale = Duration::from_millis(time),
    },
    Slider {
        name: "copies",
        label: "local tier, for copies",
        unit: "ms",
        least: 0,
        most: 10_000,
        step: 50,
        get: |options| milliseconds(options.copies),
        set: |options, time| options.copies = Duration::from_millis(time),
    },
    Slider {
        name: "seconds",
        label: "each panel runs for",
        unit: "s",
        least: 1,
        most: 20,
        step: 1,
        get: |options| options.seconds,
        set: |options, seconds| options.seconds = seconds,
    },
];

/// Returns the sliders for the page, at the values of these options.
pub(crate) fn all(options: &Options) -> Vec<Value> {
    let slider = |slider: &Slider| {
        let Slider { name, label, unit, least, most, step, get, .. } = slider;
        json!({
            "name": name, "label": label, "unit": unit,
            "min": least, "max": most, "step": step, "value": get(options),
        })
    };
    SLIDERS.iter().map(slider).collect()
}

/// Returns the options with the choices of a page.
pub(crate) fn chosen(
    options: &Options,
    choices: &BTreeMap<String, u64>,
) -> Result<Options, String> {
    let mut options = options.clone();
    for Slider { name, least, most, set, .. } in &SLIDERS {
        match choices.get(*name) {
            Some(value) if (*least..=*most).contains(value) => set(&mut options, *value),
            Some(value) => return Err(format!("{name} is from {least} to {most}, not {value}")),
            None => {}
        }
    }
    options.check().map_err(|error| error.to_string())?;
    Ok(options)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
