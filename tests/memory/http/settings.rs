//! Any time in any setting of the HTTP layer works.

use proptest::prelude::*;
use tokio::runtime::Builder;

use super::prelude::*;
use crate::all_settings::{self, picks};

const SETTINGS: [all_settings::Set<BellwetherLayer<Http>>; 5] = [
    |layer, time| layer.default_lifetime(time),
    |layer, time| layer.keep_for_validation(time),
    |layer, time| layer.max_stale(time),
    |layer, time| layer.body_limit(time),
    |layer, time| layer.policy(Policy::rfc9111().status_lifetime(StatusCode::OK, time)),
];

proptest! {
    #[test]
    fn any_time_in_any_setting_of_the_layer_works(
        picks in picks(SETTINGS.len()),
        seconds in prop::sample::select(vec!["0", "1", "4294967296", "18446744073709551616"]),
    ) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let directives: &'static str = match seconds {
                "0" => "max-age=0, stale-while-revalidate=0, stale-if-error=0",
                "1" => "max-age=1, stale-while-revalidate=1, stale-if-error=1",
                "4294967296" => "max-age=4294967296, stale-if-error=4294967296",
                _ => "max-age=18446744073709551616, stale-while-revalidate=18446744073709551616",
            };
            let modified = ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT");
            let (inner, _) = with_headers(&[("cache-control", directives), modified]);
            let mut layer = silent_layer();
            for (at, time) in &picks {
                layer = SETTINGS[*at](layer, *time);
            }
            let service = layer.layer(inner);
            for _ in 0..4 {
                let answer = ask(&service, get("/")).await;
                assert_eq!(answer.status, StatusCode::OK);
                sleep(700 * MS).await;
            }
        });
    }
}
