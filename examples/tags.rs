//! The pages of a shop, with a tag for each customer and each product that they show.
//!
//! ```text
//! cargo run --example tags
//! REDIS_URL=redis://127.0.0.1 cargo run --example tags
//! ```
//!
//! A customer moves, and a product gets another price. Each is one command, which ends the pages
//! that show it and no others.

use std::{collections::HashMap, process::ExitCode, sync::Mutex};

use bellwether::{
    BoxError, Cache, MemoryBackend, RedisBackend,
    cache::{Lead, LocalTier},
};

/// The database: where customers live, and what products cost.
static TOWNS: Mutex<[&str; 3]> = Mutex::new(["Bath", "Bonn", "Brno"]);
static PRICES: Mutex<[u32; 4]> = Mutex::new([10, 20, 30, 40]);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tags: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let pages: Cache<String> = match std::env::var("REDIS_URL") {
        Ok(url) => builder(RedisBackend::open(&url)?).build()?,
        Err(_) => builder(MemoryBackend::new()).build()?,
    };
    pages.clear().await?;
    println!("loaded for the first look: {}", look_at_all(&pages).await?.len());
    println!("loaded for the second: {}", look_at_all(&pages).await?.len());

    with(&TOWNS, |towns| towns[1] = "Bari");
    pages.invalidate_tag("customer:1").await?;
    println!("loaded after a customer moved: {:?}", look_at_all(&pages).await?);

    with(&PRICES, |prices| prices[2] = 25);
    pages.invalidate_tag("product:2").await?;
    println!("loaded after a price changed: {:?}", look_at_all(&pages).await?);
    Ok(())
}

fn builder(backend: impl bellwether::backend::Store) -> bellwether::cache::Builder<String> {
    Cache::builder(backend, "shop-pages").tags().local(LocalTier::default())
}

/// Looks at the page of each customer and product. Returns those that were loaded.
async fn look_at_all(pages: &Cache<String>) -> Result<Vec<String>, BoxError> {
    let mut loaded = HashMap::new();
    for customer in 0..3 {
        for product in 0..4 {
            let page = pages
                .request(format!("{customer}/{product}"))
                .load(move |lead| page(lead, customer, product))
                .await?;
            if page.source == bellwether::cache::Source::Led {
                loaded.insert((customer, product), page.value);
            }
        }
    }
    let mut loaded: Vec<_> = loaded.into_values().collect();
    loaded.sort();
    Ok(loaded)
}

async fn page(lead: Lead<String>, customer: usize, product: usize) -> Result<String, BoxError> {
    lead.tag(format!("customer:{customer}"));
    lead.tag(format!("product:{product}"));
    let town = with(&TOWNS, |towns| towns[customer]);
    let price = with(&PRICES, |prices| prices[product]);
    Ok(format!("product {product} for {price}, sent to {town}"))
}

fn with<T, R>(table: &Mutex<T>, look: impl FnOnce(&mut T) -> R) -> R {
    look(&mut table.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}
