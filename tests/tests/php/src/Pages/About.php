<?php
namespace Pages;

final class About implements \Page
{
    public function answer(\Request $request): \Response
    {
        return new \Response(\View::render('about', ['title' => 'About']), 200, ['cache-control' => 'max-age=60']);
    }
}
