//! The demo as a page: the panels live, with sliders for the settings.
//!
//! The page asks for `/run` with its settings, and gets the run as server-sent events. When the
//! page goes away, its run ends. Another page waits for its turn, so that runs do not slow each
//! other. A page that replays a run gets its figures at once.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Instant};

use axum::{
    Router,
    extract::{Query, State},
    http::StatusCode,
    response::{
        Html,
        sse::{Event, KeepAlive, Sse},
    },
    routing::get,
};
use futures_util::{Stream, stream};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{
        Semaphore,
        mpsc::{self, Sender},
    },
};

use crate::{
    Failure, chart,
    figures::{BAR, Figures, bars},
    options::Options,
    origin::{CAPACITY, CONNECTIONS, Load},
    print,
    replica::Way,
    report, run, sliders,
};

const PAGE: &str = include_str!("page.html");

/// What the page holds in place of the ways and the sliders.
const PLACE: &str = "{ /* ways and sliders */ }";

/// Events that wait for a slow page. It misses samples beyond them.
const EVENTS: usize = 64;

struct Site {
    options: Options,
    /// The figures to show in place of a run.
    replay: Option<Vec<Figures>>,
    page: String,
    turn: Semaphore,
}

/// What a run tells its page.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Message {
    /// Another run is under way.
    Waiting,
    /// The run begins. The database can bear so many queries.
    Started {
        capacity_per_100ms: f64,
    },
    /// A way is under way.
    Sample {
        way: Way,
        /// How long the way runs, and has run.
        seconds: f64,
        elapsed: f64,
        queries_per_100ms: Vec<u32>,
    },
    /// A way is over.
    Figures(Box<Figures>),
    Done {
        summary: String,
    },
    Failed {
        message: String,
    },
}

/// Serves the page until the process ends.
pub(crate) async fn serve(options: Options, replay: Option<Vec<Figures>>) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await;
    let listener = listener.map_err(|error| format!("--port {}: {error}", options.port))?;
    let address = listener.local_addr()?;
    let page = PAGE.replace(PLACE, &settings(&options, replay.is_some()).to_string());
    let site = Arc::new(Site { options, replay, page, turn: Semaphore::new(1) });
    let app = Router::new()
        .route("/", get(async |State(site): State<Arc<Site>>| Html(site.page.clone())))
        .route("/run", get(events))
        .with_state(site);
    print(&format!("Open http://{address}/ in a browser. Ctrl-C ends the demo."))?;
    Ok(axum::serve(listener, app).await?)
}

/// Returns the ways and the sliders, for the page.
fn settings(options: &Options, is_replay: bool) -> Value {
    let way = |way: Way| {
        json!({
            "name": way, "title": way.title(options), "explanation": way.explanation(options),
            "color": { "light": chart::color(way), "dark": chart::dark_color(way) },
        })
    };
    let ways: Vec<_> = Way::ALL.into_iter().map(way).collect();
    let away = options.away_in(Way::StoreAway).map(|time| {
        let words = format!("{} is away", options.store_name());
        json!({ "from": time.start.as_secs_f64(), "to": time.end.as_secs_f64(), "words": words })
    });
    json!({
        "ways": ways, "sliders": sliders::all(options), "keys": options.keys, "away": away,
        "capacity": CAPACITY, "connections": CONNECTIONS, "replay": is_replay,
    })
}

/// Starts a run, and sends what it tells.
async fn events(
    State(site): State<Arc<Site>>,
    Query(choices): Query<BTreeMap<String, u64>>,
) -> Result<Sse<impl Stream<Item = Result<Event, axum::Error>>>, (StatusCode, String)> {
    let options = sliders::chosen(&site.options, &choices);
    let options = options.map_err(|message| (StatusCode::BAD_REQUEST, message))?;
    let (sender, receiver) = mpsc::channel(EVENTS);
    tokio::spawn(async move {
        tokio::select! {
            () = run_in_turn(&site, &options, &sender) => {}
            () = sender.closed() => {}
        }
    });
    let events = stream::unfold(receiver, async |mut receiver| {
        let message: Message = receiver.recv().await?;
        Some((Event::default().json_data(message), receiver))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

async fn run_in_turn(site: &Site, options: &Options, sender: &Sender<Message>) {
    if site.turn.available_permits() == 0 {
        tell(sender, Message::Waiting).await;
    }
    let Ok(_turn) = site.turn.acquire().await else { return };
    let ways = match &site.replay {
        Some(ways) => replay_all(options, ways, sender).await,
        None => run_all(options, sender).await,
    };
    let last = match ways {
        Ok(ways) => Message::Done { summary: report::sentences(options, &ways) },
        Err(error) => Message::Failed { message: format!("{error:#}") },
    };
    tell(sender, last).await;
}

async fn run_all(options: &Options, sender: &Sender<Message>) -> Result<Vec<Figures>, Failure> {
    tell(sender, started(options)).await;
    let mut ways = Vec::new();
    for way in Way::ALL {
        let tick = |loads: &[Load], begun: Instant| {
            let queries_per_100ms = bars(loads, begun, options, way);
            let seconds = options.length(way).as_secs_f64();
            let elapsed = begun.elapsed().as_secs_f64();
            // A page that is slow misses a sample, and the next one has it all.
            let _ = sender.try_send(Message::Sample { way, seconds, elapsed, queries_per_100ms });
        };
        let figures = run::one_way(options, way, tick).await?;
        tell(sender, Message::Figures(Box::new(figures.clone()))).await;
        ways.push(figures);
    }
    Ok(ways)
}

async fn replay_all(
    options: &Options,
    ways: &[Figures],
    sender: &Sender<Message>,
) -> Result<Vec<Figures>, Failure> {
    tell(sender, started(options)).await;
    for figures in ways {
        tell(sender, Message::Figures(Box::new(figures.clone()))).await;
    }
    Ok(ways.to_vec())
}

fn started(options: &Options) -> Message {
    let capacity_per_100ms = CAPACITY as f64 * BAR.div_duration_f64(options.load_time);
    Message::Started { capacity_per_100ms }
}

/// Sends a message. If the page has gone away, [`events`] ends the run.
async fn tell(sender: &Sender<Message>, message: Message) {
    let _ = sender.send(message).await;
}
